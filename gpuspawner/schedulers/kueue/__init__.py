"""Optional: Kueue owns queue, quota and borrowing. Each place in the queue is one Workload, made before any pod."""
