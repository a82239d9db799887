"""publish.py - puts files where the servers of servers.sh have them.

  publish.py s3 URL BUCKET[/PREFIX] [DIR|FILE...]   uploads what is in DIR, or FILE, to Swift, by its own interface
  publish.py hub DIR ORG/NAME CKPT [COMMIT]         a repository "main" of the files in CKPT; for nginx

The uploads know nothing about S3: what ckptfs reads has been written by another protocol.
"""
import hashlib
import http.client
import json
import os
import shutil
import sys
from urllib.parse import quote, urlsplit


def files_in(top):
    if not os.path.isdir(top):
        yield os.path.basename(top), top
        return
    for at, dirs, names in os.walk(top):
        dirs.sort()
        for name in sorted(names):
            path = os.path.join(at, name)
            yield os.path.relpath(path, top), path


def s3(url, where, *tops):
    bucket, _, prefix = where.partition("/")
    c = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def ask(method, path, body=None, headers={}):
        c.request(method, path, body, headers)
        r = c.getresponse()
        r.read()
        if r.status >= 300:
            sys.exit(f"{method} {path}: {r.status}")
        return r

    auth = ask("GET", "/auth/v1.0", None, {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"})
    root = urlsplit(auth.headers["X-Storage-Url"]).path
    token = {"X-Auth-Token": auth.headers["X-Auth-Token"]}
    ask("PUT", f"{root}/{quote(bucket)}", None, token | {"Content-Length": "0"})
    for top in tops:
        # Metadata last, as savers write it.
        for name, path in sorted(files_in(top), key=lambda x: (os.path.basename(x[0])[0] == ".", x)):
            key = f"{prefix}/{name}" if prefix else name
            with open(path, "rb") as f:
                ask("PUT", f"{root}/{quote(bucket)}/{quote(key)}", f.read(), token)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def hub(where, repo, top, commit=None):
    commit = commit or hashlib.sha1(repo.encode()).hexdigest()
    api = f"{where}/hub/api/models/{repo}"
    all_files, maps, tree = [], [], {}
    for name, path in files_in(top):
        with open(path, "rb") as f:
            data = f.read()
        sha = hashlib.sha256(data).hexdigest()
        to = f"{where}/hub/files/{repo}/{commit}/{name}"
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(path, to)
        entry = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data),
                 "lfs": {"oid": sha, "size": len(data), "pointerSize": 134}, "path": name}
        all_files.append(entry)
        for rev in "main", commit:
            maps.append((f"/{repo}/resolve/{rev}/{name}", sha, len(data), commit))
        parts = name.split("/")
        for i in range(1, len(parts)):
            d = "/".join(parts[:i])
            level = tree.setdefault("/".join(parts[:i - 1]), {})
            level[d] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": d}
        tree.setdefault("/".join(parts[:-1]), {})[name] = entry
    about = json.dumps({"id": repo, "sha": commit, "siblings": [{"rfilename": f["path"]} for f in all_files]})
    write(f"{api}.json", about)
    for rev in "main", commit:
        write(f"{api}/revision/{rev}.json", about)
        directories = [d for level in tree.values() for d in level.values() if d["type"] == "directory"]
        write(f"{api}/tree/{rev}.all.json", json.dumps(all_files + directories))
        for d, level in tree.items():
            write(f"{api}/tree/{rev}{'/' + d if d else ''}.json", json.dumps(list(level.values())))
    # nginx has one map for each variable, so all repositories are in one file.
    kept = f"{where}/hub.json"
    known = json.load(open(kept)) if os.path.exists(kept) else []
    known += maps
    write(kept, json.dumps(known))
    with open(f"{where}/hub.map", "w") as f:
        for i, variable in enumerate(("hub_etag", "hub_size", "hub_commit")):
            f.write(f"map $uri ${variable} {{\n default \"\";\n")
            for m in known:
                f.write(f' "{m[0]}" "{m[1 + i]}";\n')
            f.write("}\n")


def main():
    what, *args = sys.argv[1:]
    {"s3": s3, "hub": hub}[what](*args)


main()
