"""AMQP 1.0 without sockets and clocks: codec, frames, performatives, messages, and the engine for both roles."""
