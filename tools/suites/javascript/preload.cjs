// Loaded before the tests.
//
// - Math.random comes from a seed: the tests draw the kind of their entities with it.
// - The namespace has a name of Azure's kind and no port, because the tests take such strings apart; connections to it go
//   to the broker's port on this machine. The certificate is checked, the name in it is not. No other name is known.
// - `should`, which one file of tests expects another one to have turned on.

const dns = require("node:dns");
const tls = require("node:tls");

let state = Number(process.env.SUITE_SEED) >>> 0;

Math.random = () => {
  state = (state + 0x9e3779b9) >>> 0;
  let mixed = state ^ (state >>> 16);
  mixed = Math.imul(mixed, 0x21f0aaad);
  mixed ^= mixed >>> 15;
  mixed = Math.imul(mixed, 0x735a2d97);
  return ((mixed ^ (mixed >>> 15)) >>> 0) / 4294967296;
};

const lookup = dns.lookup;

dns.lookup = (name, ...rest) => {
  if (name === "localhost" || /^[\d.]+$|:/.test(name)) return lookup(name, ...rest);
  const error = Object.assign(new Error(`getaddrinfo ENOTFOUND ${name}`), {
    errno: -3008,
    code: "ENOTFOUND",
    syscall: "getaddrinfo",
    hostname: name,
  });
  return process.nextTick(rest.at(-1), error);
};

const connect = tls.connect;

tls.connect = (...given) => {
  const callback = given.find((each) => typeof each === "function");
  const options = { ...given.find((each) => each !== null && typeof each === "object") };
  if (typeof given[0] === "number") options.port = given[0];
  if (typeof given[1] === "string") options.host = given[1];
  if (options.host === process.env.SUITE_HOST) {
    options.servername = options.host;
    options.host = "127.0.0.1";
    options.port = Number(process.env.SUITE_PORT);
    options.checkServerIdentity = () => undefined;
  }
  return connect(options, callback);
};

if (process.env.SUITE_SHOULD) require(require.resolve("chai", { paths: [process.cwd()] })).should();
