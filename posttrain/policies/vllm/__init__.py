"""vLLM as the engine that samples: in this process, or behind its HTTP server."""
