// TypeScript of a checkout into CommonJS that Node runs, file by file and without looking at types: FROM INTO …
// Exports stay plain properties, so that the tests' stubs can replace them.

const fs = require("node:fs");
const path = require("node:path");
const ts = require("typescript");

const compilerOptions = {
  module: ts.ModuleKind.CommonJS,
  target: ts.ScriptTarget.ES2020,
  esModuleInterop: true,
  inlineSourceMap: true,
};

// What `import.meta.url` is called in CommonJS.
const OWN_URL = 'require("node:url").pathToFileURL(__filename).href';

function transpile(from, into) {
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    const source = path.join(from, entry.name);
    if (entry.isDirectory()) transpile(source, path.join(into, entry.name));
    else if (entry.name.endsWith(".ts") && !entry.name.endsWith(".d.ts")) {
      const text = fs.readFileSync(source, "utf8").replaceAll("import.meta.url", OWN_URL);
      const { outputText } = ts.transpileModule(text, { compilerOptions, fileName: source });
      fs.mkdirSync(into, { recursive: true });
      fs.writeFileSync(path.join(into, entry.name.replace(/\.ts$/, ".js")), outputText);
    }
  }
}

const roots = process.argv.slice(2);
for (let index = 0; index < roots.length; index += 2) transpile(roots[index], roots[index + 1]);
