"""What is asked of a catalog: the menus of a form, what was picked in it, and the whole request that comes of both."""
