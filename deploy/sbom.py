"""Print the packages of the image as an SBOM (CycloneDX 1.6, JSON). It reads only requirements.lock
and pyproject.toml, needs no network, and gives the same output for the same input.

python deploy/sbom.py > build/sbom.json
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Sequence
from typing import Any

from image_requirements import ROOT, Locked, needed, packages, roots

_VERSION = re.compile(r"==([^ ;\\\n]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

Document = dict[str, Any]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(needed(packages((ROOT / "requirements.lock").read_text()), roots(project)))
    json.dump(document(project, found), sys.stdout, indent=2)
    sys.stdout.write("\n")


def document(project: Document, found: Sequence[Locked]) -> Document:
    """Return the SBOM. Its serial number is derived from its contents."""
    ours = reference(project["name"], project["version"])
    components = [component(package) for package in found]
    listed = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ours + listed)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": project["name"],
                "version": project["version"],
                "purl": ours,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": dependencies(project, found),
    }


def component(package: Locked) -> Document:
    """Return one package. A package that is locked only for some platforms or Python versions is optional."""
    marked = ";" in package.text.split("\n", 1)[0]
    purl = reference(package.name, version(package))
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": version(package),
        "scope": "optional" if marked else "required",
        "purl": purl,
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{package.name}/",
                "comment": "files allowed by the lock",
                "hashes": [{"alg": "SHA-256", "content": found} for found in _HASH.findall(package.text)],
            }
        ],
    }


def dependencies(project: Document, found: Sequence[Locked]) -> list[Document]:
    """Return the dependencies between the packages of the image."""
    refs = {package.name: reference(package.name, version(package)) for package in found}
    refs[project["name"]] = reference(project["name"], project["version"])
    return [
        {"ref": ref, "dependsOn": sorted(refs[p.name] for p in found if name in p.wanted_by)}
        for name, ref in sorted(refs.items())
    ]


def reference(name: str, at: str) -> str:
    """Return the package URL (purl)."""
    return f"pkg:pypi/{name}@{at}"


def version(package: Locked) -> str:
    """Return the locked version."""
    return _VERSION.findall(package.text)[0]


if __name__ == "__main__":
    main()
