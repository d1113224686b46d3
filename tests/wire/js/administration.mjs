// One command for the SDK's administration client on stdin: {connectionString, method, args}; its answer on stdout.
// Lists are collected. A refusal is told with the SDK's own name, code, status and text.

import { ServiceBusAdministrationClient } from "@azure/service-bus";
import { createInterface } from "node:readline";

const clients = new Map();

function clientFor(connectionString) {
  if (!clients.has(connectionString)) clients.set(connectionString, new ServiceBusAdministrationClient(connectionString));
  return clients.get(connectionString);
}

async function perform({ connectionString, method, args }) {
  const answer = clientFor(connectionString)[method](...(args ?? []));
  if (!answer[Symbol.asyncIterator]) {
    const { _response, ...plain } = (await answer) ?? {};
    return typeof (await answer) === "boolean" ? await answer : plain;
  }
  const all = [];
  for await (const page of answer.byPage({ maxPageSize: 2 })) all.push(...page);
  return all;
}

for await (const line of createInterface({ input: process.stdin })) {
  let told;
  try {
    told = { ok: await perform(JSON.parse(line)) };
  } catch (error) {
    told = { error: { name: error.name, code: error.code, status: error.statusCode, message: error.message } };
  }
  process.stdout.write(JSON.stringify(told) + "\n");
}
