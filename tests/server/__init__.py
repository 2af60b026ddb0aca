"""The HTTP server under real clients, over real sockets."""
