"""wheel.py LIBRARY PROGRAM DIRECTORY - pack the package with a libckpt and the program into a wheel in DIRECTORY.

Written after PEP 427 with the standard library alone: the tools that build wheels fetch others over the network. The
same files give the same bytes. Prints the wheel's path.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import sys
import zipfile

try:
    import tomllib
except ImportError:  # before Python 3.11
    import toml as tomllib  # python3-toml

HERE = pathlib.Path(__file__).resolve().parent


def digest(data):
    """A hash in the form that RECORD needs."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(project, version):
    """The file METADATA, in version 2.1 of the core metadata."""
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}",
             f"Summary: {project['description']}", f"License: {project['license']['text']}",
             f"Requires-Python: {project['requires-python']}"]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *[f"Requires-Dist: {need}; extra == '{extra}'" for need in needs]]
    return "\n".join(lines) + "\n"


def entry_points(groups):
    return "".join(f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in points.items())
                   for group, points in groups.items())


# The Debian packages of the libraries that are linked statically.
STATIC = ("libblosc-dev libdeflate-dev libfuse3-dev liblz4-dev libseccomp-dev libsnappy-dev libsqlite3-dev libxxhash-dev "
          "libzstd-dev nettle-dev zlib1g-dev g++").split()


def licences():
    """Our licence, and the copyright files of the libraries in the wheel, which have to be included."""
    found = {"LICENSE": (HERE.parents[1] / "LICENSE").read_bytes()}
    for package in STATIC:
        path = pathlib.Path("/usr/share/doc", package, "copyright")
        if path.exists():
            found[f"{package}.copyright"] = path.read_bytes()
        else:
            print(f"wheel.py: no {path}: the wheel lacks this licence; do not distribute it", file=sys.stderr)
    return found


def main(library, program, directory):
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = re.search(r'^__version__ = "(.*)"$', (HERE / "ckptfs/_libckpt.py").read_text(), re.M)[1]
    tag = f"py3-none-linux_{platform.machine()}"
    name = f"{project['name']}-{version}"
    files = {f"ckptfs/{path.name}": path.read_bytes() for path in sorted((HERE / "ckptfs").iterdir()) if path.is_file()}
    files[f"ckptfs/{os.path.basename(library)}"] = pathlib.Path(library).read_bytes()
    # An executable, not an entry point: pip installs files below scripts/ as programs.
    files[f"{name}.data/scripts/ckptfs"] = pathlib.Path(program).read_bytes()
    about = {"METADATA": metadata(project, version),
             "WHEEL": f"Wheel-Version: 1.0\nGenerator: ckptfs\nRoot-Is-Purelib: false\nTag: {tag}\n",
             "entry_points.txt": entry_points(project["entry-points"])}
    files.update({f"{name}.dist-info/{key}": text.encode() for key, text in about.items()})
    files.update({f"{name}.dist-info/licenses/{key}": data for key, data in licences().items()})
    record = "".join(f"{path},{digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    wheel = pathlib.Path(directory) / f"{name}-{tag}.whl"
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files.items():
            member = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            member.external_attr = (0o100755 if ".data/scripts/" in path or ".so." in path else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(member, data)
    partial.replace(wheel)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
