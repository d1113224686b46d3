// The official JavaScript SDK as a servant: one JSON command a line on stdin, one JSON answer a line on stdout.
//
//   {"id": 1, "do": "send", "client": "c", "queue": "orders", "message": {"body": "hello"}}
//   {"id": 1, "ok": …}    or    {"id": 1, "error": {"name", "code", "message", "retryable"}}
//   {"event": "message" | "error", "subscription": "s", …}       from `subscribe`, unasked
//
// Commands run side by side: an answer comes when its command is done, not in the order asked. Clients, senders,
// receivers and received messages are kept by name, so that a test can settle what it received earlier.
// Times in the answers are milliseconds of a monotonic clock.

import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import Long from "long";
import WebSocket from "ws";

const clients = new Map();
const senders = new Map();
const receivers = new Map();
const received = new Map(); // by lock token: {message, receiver}
const subscriptions = new Map();

const say = (value) => process.stdout.write(JSON.stringify(value, plain) + "\n");

// What JSON has no word for: bytes, 64-bit numbers and dates keep their kind.
function plain(key, value) {
  const raw = this[key];
  if (typeof value === "bigint") return { $long: value.toString() };
  if (Long.isLong(raw)) return { $long: raw.toString() };
  if (raw instanceof Date) return { $date: raw.getTime() };
  if (Buffer.isBuffer(raw) || raw instanceof Uint8Array) return { $bytes: Buffer.from(raw).toString("base64") };
  return value;
}

function revive(value) {
  if (Array.isArray(value)) return value.map(revive);
  if (value === null || typeof value !== "object") return value;
  if ("$long" in value) return Long.fromString(value.$long);
  if ("$date" in value) return new Date(value.$date);
  if ("$bytes" in value) return Buffer.from(value.$bytes, "base64");
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, revive(inner)]));
}

const found = (map, name, kind) => {
  if (!map.has(name)) throw new Error(`no such ${kind}: ${name}`);
  return map.get(name);
};

function senderOf(command) {
  const key = `${command.client}/${command.queue}/${command.link ?? ""}`;
  if (!senders.has(key)) senders.set(key, found(clients, command.client, "client").createSender(command.queue));
  return senders.get(key);
}

// What is received from: a queue, or a subscription of a topic.
const sourceOf = (command) => (command.topic ? [command.topic, command.subscription] : [command.queue]);

// A dead-letter queue is named by `subQueue: "deadLetter"`; a mode by `receiveMode`.
function receiverOf(command) {
  const options = {
    receiveMode: command.receiveMode ?? "peekLock",
    ...(command.subQueue ? { subQueueType: command.subQueue } : {}),
    maxAutoLockRenewalDurationInMs: command.autoRenewMs ?? 0,
  };
  const source = sourceOf(command);
  const key = `${command.client}/${source.join("/")}/${command.link ?? ""}/${options.receiveMode}/${command.subQueue ?? ""}`;
  if (!receivers.has(key)) receivers.set(key, found(clients, command.client, "client").createReceiver(...source, options));
  return receivers.get(key);
}

function told(message, receiver) {
  if (message.lockToken) received.set(message.lockToken, { message, receiver });
  const { _rawAmqpMessage, delivery, ...rest } = message;
  return {
    ...rest,
    header: _rawAmqpMessage?.header ?? null,
    messageAnnotations: _rawAmqpMessage?.messageAnnotations ?? null,
    bodyType: _rawAmqpMessage?.bodyType ?? null,
  };
}

const locked = (command) => found(received, command.lockToken, "lock token");

const settle = (method) => async (command) => {
  const { message, receiver } = locked(command);
  const begunMs = performance.now();
  await receiver[method](message, command.options);
  return { tookMs: performance.now() - begunMs };
};

const commands = new Map(Object.entries({
  // A message session, kept by the name `session`; without a sessionId the next one that has messages.
  async acceptSession({ client, queue, session, sessionId, options }) {
    const found_client = found(clients, client, "client");
    const receiver = sessionId === undefined
      ? await found_client.acceptNextSession(queue, options)
      : await found_client.acceptSession(queue, sessionId, options);
    receivers.set(session, receiver);
    return { sessionId: receiver.sessionId, lockedUntilUtc: receiver.sessionLockedUntilUtc };
  },
  async sessionReceive({ session, count, waitMs }) {
    const receiver = found(receivers, session, "session");
    const messages = await receiver.receiveMessages(count ?? 1, { maxWaitTimeInMs: waitMs ?? 5000 });
    return messages.map((message) => told(message, receiver));
  },
  async sessionPeek({ session, count }) {
    const receiver = found(receivers, session, "session");
    return (await receiver.peekMessages(count ?? 1)).map((message) => told(message, receiver));
  },
  async setSessionState({ session, state }) {
    await found(receivers, session, "session").setSessionState(state);
    return {};
  },
  async getSessionState({ session }) {
    return { state: await found(receivers, session, "session").getSessionState() };
  },
  async renewSession({ session }) {
    return { lockedUntilUtc: await found(receivers, session, "session").renewSessionLock() };
  },
  async closeSession({ session }) {
    await found(receivers, session, "session").close();
    receivers.delete(session);
    return {};
  },
  // With `websocket` through one, which is always TLS: NODE_EXTRA_CA_CERTS says whom to trust.
  async connect({ client, connectionString, options, websocket }) {
    const more = websocket ? { webSocketOptions: { webSocket: WebSocket } } : {};
    clients.set(client, new ServiceBusClient(connectionString, { ...options, ...more }));
    return {};
  },
  // Attach the sender's link now, so that a measurement does not include it. The SDK does so when it has to know the
  // size that the link allows.
  async open(command) {
    return { maxSizeInBytes: (await senderOf(command).createMessageBatch()).maxSizeInBytes };
  },
  async send(command) {
    const begunMs = performance.now();
    await senderOf(command).sendMessages(command.message ?? command.messages, { abortSignal: deadline(command) });
    return { tookMs: performance.now() - begunMs };
  },
  // Every message a transfer of its own, all on the wire before the first answer: one link, one outcome each.
  async sendMany(command) {
    const sender = senderOf(command);
    const begunMs = performance.now();
    const outcomes = await Promise.allSettled(command.messages.map((message) => sender.sendMessages(message)));
    return {
      tookMs: performance.now() - begunMs,
      outcomes: outcomes.map((one) => (one.status === "fulfilled" ? null : failure(one.reason))),
    };
  },
  // At most `inFlight` unanswered at a time.
  async sendThrottled(command) {
    const sender = senderOf(command);
    const left = command.messages.slice();
    const begunMs = performance.now();
    let under = 0;
    let most = 0;
    const worker = async () => {
      for (let message = left.shift(); message !== undefined; message = left.shift()) {
        most = Math.max(most, ++under);
        await sender.sendMessages(message);
        under -= 1;
      }
    };
    await Promise.all(Array.from({ length: command.inFlight }, worker));
    return { tookMs: performance.now() - begunMs, mostInFlight: most };
  },
  async sendBatch(command) {
    const sender = senderOf(command);
    const batch = await sender.createMessageBatch(command.options);
    const added = command.messages.map((message) => batch.tryAddMessage(message));
    await sender.sendMessages(batch);
    return { added, sizeInBytes: batch.sizeInBytes, maxSizeInBytes: batch.maxSizeInBytes };
  },
  async receive(command) {
    const receiver = receiverOf(command);
    const messages = await receiver.receiveMessages(command.count ?? 1, {
      maxWaitTimeInMs: command.waitMs ?? 5000,
      abortSignal: deadline(command),
    });
    return messages.map((message) => told(message, receiver));
  },
  complete: settle("completeMessage"),
  abandon: settle("abandonMessage"),
  defer: settle("deferMessage"),
  deadLetter: settle("deadLetterMessage"),
  async renew(command) {
    const { message, receiver } = locked(command);
    return { lockedUntilUtc: await receiver.renewMessageLock(message) };
  },
  async peek(command) {
    const receiver = receiverOf(command);
    const messages = await receiver.peekMessages(command.count ?? 1, {
      ...(command.from ? { fromSequenceNumber: command.from } : {}),
      ...(command.omitBody ? { omitMessageBody: true } : {}),
    });
    return messages.map((message) => told(message, receiver));
  },
  async schedule(command) {
    return senderOf(command).scheduleMessages(command.messages ?? command.message, command.at);
  },
  async cancel(command) {
    await senderOf(command).cancelScheduledMessages(command.sequenceNumbers);
    return {};
  },
  async receiveDeferred(command) {
    const receiver = receiverOf(command);
    const messages = await receiver.receiveDeferredMessages(command.sequenceNumbers);
    return messages.map((message) => told(message, receiver));
  },
  async subscribe(command) {
    const receiver = receiverOf(command);
    const name = command.subscription;
    subscriptions.set(
      name,
      receiver.subscribe(
        {
          processMessage: async (message) => {
            say({ event: "message", subscription: name, message: told(message, receiver) });
            if (command.throws) throw new Error(command.throws);
          },
          processError: async ({ error, errorSource }) => {
            say({ event: "error", subscription: name, errorSource, error: failure(error) });
          },
        },
        { autoCompleteMessages: command.autoComplete ?? true, maxConcurrentCalls: command.concurrent ?? 1 },
      ),
    );
    return {};
  },
  async unsubscribe({ subscription }) {
    await found(subscriptions, subscription, "subscription").close();
    subscriptions.delete(subscription);
    return {};
  },
  // Rules over $management; `pageSize` says how many are asked for at a time.
  async rules({ client, topic, subscription, pageSize }) {
    const manager = found(clients, client, "client").createRuleManager(topic, subscription);
    const rules = [];
    for await (const page of manager.listRules().byPage({ maxPageSize: pageSize ?? 100 })) rules.push(...page);
    return rules;
  },
  async createRule({ client, topic, subscription, name, filter, action }) {
    const manager = found(clients, client, "client").createRuleManager(topic, subscription);
    await (action ? manager.createRule(name, filter, action) : manager.createRule(name, filter));
    return {};
  },
  async deleteRule({ client, topic, subscription, name }) {
    await found(clients, client, "client").createRuleManager(topic, subscription).deleteRule(name);
    return {};
  },
  // Over HTTPS: NODE_EXTRA_CA_CERTS says whom to trust.
  async adminQueue({ connectionString, queue, options, timeoutMs }) {
    const client = new ServiceBusAdministrationClient(connectionString, options);
    return client.getQueue(queue, { abortSignal: deadline({ timeoutMs }) });
  },
  // Any method of the administration client whose answer is no list.
  async admin({ connectionString, method, args, options }) {
    const { _response, ...plain } = await new ServiceBusAdministrationClient(connectionString, options)[method](...args);
    return plain;
  },
  // One link: {queue, sender: true} or {queue, receiver: true}; or the whole client.
  async close(command) {
    if (command.sender) {
      const key = `${command.client}/${command.queue}/${command.link ?? ""}`;
      await found(senders, key, "sender").close();
      senders.delete(key);
    } else if (command.receiver) {
      const gone = [...receivers].filter(([key]) => key.startsWith(`${command.client}/${command.queue}/${command.link ?? ""}/`));
      for (const [key, receiver] of gone) {
        await receiver.close();
        receivers.delete(key);
      }
    } else {
      await found(clients, command.client, "client").close();
      clients.delete(command.client);
      for (const map of [senders, receivers])
        for (const key of [...map.keys()]) if (key.startsWith(`${command.client}/`)) map.delete(key);
    }
    return {};
  },
  async ping() {
    return { node: process.version, heapUsed: process.memoryUsage().heapUsed };
  },
}));

function deadline(command) {
  return command.timeoutMs ? AbortSignal.timeout(command.timeoutMs) : undefined;
}

function failure(error) {
  return {
    name: error?.name ?? null,
    code: error?.code ?? null,
    message: error?.message ?? String(error),
    retryable: error?.retryable ?? null,
  };
}

async function answer(line) {
  let id = null;
  try {
    const command = revive(JSON.parse(line));
    id = command.id;
    say({ id, ok: (await found(commands, command.do, "command")(command)) ?? null });
  } catch (error) {
    say({ id, error: failure(error) });
  }
}

process.on("unhandledRejection", (error) => say({ event: "unhandled", error: failure(error) }));
const lines = createInterface({ input: process.stdin });
lines.on("line", answer);
lines.on("close", () => process.exit(0));
