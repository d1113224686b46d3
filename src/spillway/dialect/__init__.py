"""Service Bus's accent of AMQP: addresses, tokens, annotations, outcomes, `$cbs` and `$management`."""
