"""What the integration tests stand on: processes, raw sockets, engines played by the test itself."""
