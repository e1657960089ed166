"""Which GPUs of which node a request gets, of those that are free. Never who gets them, which is the queue's."""
