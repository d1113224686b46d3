"""Check the manifests for Kubernetes against the schema of the operator's resource definitions.

    python tools/manifests.py --crd sparkoperator.k8s.io_sparkapplications.yaml --crd …_scheduledsparkapplications.yaml

checks examples/kubernetes against the whole definitions (config/crd/bases in github.com/kubeflow/spark-operator). With
`--write` it also writes down what of these schemas the manifests use, names and types, which is what `make test` checks
them against: a field that is new there has to be checked against the whole once.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
MANIFESTS: Final = ROOT / "examples" / "kubernetes"
USED: Final = ROOT / "tests" / "spark" / "sparkapplication_schema.json"
KEPT: Final = ("type", "enum", "minimum", "maximum", "pattern", "required", "x-kubernetes-int-or-string")
ANYTHING: Final = "x-kubernetes-preserve-unknown-fields"
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}

Schema = dict[str, Any]


def manifests() -> dict[str, Any]:
    """By the names of their files."""
    return {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(MANIFESTS.glob("*.yaml"))}


def schemas_of(definition: Any) -> dict[str, Schema]:
    """Of a resource definition: by `apiVersion kind`."""
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    return {
        f"{spec['group']}/{version['name']} {kind}": version["schema"]["openAPIV3Schema"]
        for version in spec["versions"]
    }


def problems(manifest: Any, schemas: dict[str, Schema]) -> list[str]:
    """What the API server would refuse; nothing if it is good."""
    name = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
    if name not in schemas:
        return [f"{name} is not defined: there are {', '.join(sorted(schemas))}"]
    return list(_problems(manifest, schemas[name], ""))


def _problems(value: Any, schema: Schema, path: str) -> Iterator[str]:
    where = path or "the manifest"
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)):
            yield f"{where}: a number or a string"
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{where}: {kind}, not {type(value).__name__}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: one of {schema['enum']}, not {value!r}"
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        yield f"{where}: {value!r} is not of the form {schema['pattern']}"
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{where}: {value} is out of range"
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _problems(each, schema.get("items", {}), f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _object_problems(value, schema, path)


def _object_problems(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing".lstrip(".")
    for name, each in value.items():
        inner = _schema_of(name, schema, path)
        if inner is None:
            yield f"{path}.{name} is not a field".lstrip(".")
        else:
            yield from _problems(each, inner, f"{path}.{name}".lstrip("."))


def _schema_of(name: str, schema: Schema, path: str) -> Schema | None:
    if name in schema.get("properties", {}):
        found: Schema = schema["properties"][name]
        return found
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return more
    # The API server knows what is in `metadata` by itself.
    return {} if more or schema.get(ANYTHING) or path == "metadata" or "properties" not in schema else None


def used(value: Any, schema: Schema) -> Schema:
    """What of a schema a manifest has to do with: no words, only names and types."""
    kept: Schema = {name: schema[name] for name in (*KEPT, ANYTHING) if name in schema}
    if isinstance(value, list) and "items" in schema:
        kept["items"] = {}
        for each in value:
            kept["items"] = merged(kept["items"], used(each, schema["items"]))
    if isinstance(value, dict):
        if "properties" in schema:
            names = [name for name in value if name in schema["properties"]]
            kept["properties"] = {name: used(value[name], schema["properties"][name]) for name in names}
        if isinstance(schema.get("additionalProperties"), dict):
            kept["additionalProperties"] = used(None, schema["additionalProperties"])
    return kept


def merged(one: Schema, other: Schema) -> Schema:
    """Both together."""
    found = {**one, **other}
    for name in ("properties", "items", "additionalProperties"):
        if name not in one or name not in other:
            continue
        if name != "properties":
            found[name] = merged(one[name], other[name])
            continue
        fields = {**one[name], **other[name]}
        for field in one[name].keys() & other[name].keys():
            fields[field] = merged(one[name][field], other[name][field])
        found[name] = fields
    return found


def write_used(schemas: dict[str, Schema], sources: dict[str, str]) -> None:
    found: dict[str, Schema] = {}
    for manifest in manifests().values():
        name = f"{manifest['apiVersion']} {manifest['kind']}"
        found[name] = merged(found.get(name, {}), used(manifest, schemas[name]))
    about = {"of": "github.com/kubeflow/spark-operator, config/crd/bases", "sha256": sources, "schemas": found}
    USED.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check examples/kubernetes against resource definitions.")
    parser.add_argument("--crd", action="append", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"and write {USED.relative_to(ROOT)}")
    given = parser.parse_args()
    schemas: dict[str, Schema] = {}
    sources = {}
    for path in given.crd:
        data = path.read_bytes()
        schemas |= schemas_of(yaml.safe_load(data))
        sources[path.name] = hashlib.sha256(data).hexdigest()
    failed = 0
    for name, manifest in manifests().items():
        for problem in problems(manifest, schemas):
            failed += 1
            print(f"{name}: {problem}")
    if failed:
        return 1
    if given.write:
        write_used(schemas, sources)
    print(f"manifests: {len(manifests())} are good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
