"""publish.py - puts files onto the servers of servers.sh.

  publish.py s3 URL BUCKET[/PREFIX] [DIR|FILE...]   uploads the contents of DIR, or FILE, by Swift's own interface
  publish.py objects URL BUCKET[/PREFIX]            lists the keys with that prefix, and the objects' sizes
  publish.py get URL BUCKET/PREFIX DIR              writes the objects below it to files
  publish.py remove URL BUCKET/PREFIX               removes them
  publish.py uploads URL BUCKET[/PREFIX]            lists unfinished multipart uploads, or what is left of them
  publish.py hub DIR ORG/NAME CKPT [COMMIT]         makes a repository "main" of the files in CKPT, for nginx

Uploads do not use S3: what ckptfs reads has been written by another protocol, which Ceph's gateway has, too.
"""
import base64
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import shutil
import sys
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree


def files_in(top):
    if not os.path.isdir(top):
        yield os.path.basename(top), top
        return
    for at, dirs, names in os.walk(top):
        dirs.sort()
        for name in sorted(names):
            path = os.path.join(at, name)
            yield os.path.relpath(path, top), path


def swift(url):
    """A function that sends a request to Swift, and the path of the account."""
    c = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def ask(method, path, body=None, headers={}):
        c.request(method, path, body, headers)
        r = c.getresponse()
        r.text = r.read()
        if r.status >= 300 and (method == "PUT" or r.status != 404):
            sys.exit(f"{method} {path}: {r.status}")
        return r

    auth = ask("GET", "/auth/v1.0", None, {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"})
    root = urlsplit(auth.headers["X-Storage-Url"]).path
    token = {"X-Auth-Token": auth.headers["X-Auth-Token"]}
    return (lambda method, path, body=None, headers={}: ask(method, root + path, body, token | headers))


def listing(ask, bucket, prefix):
    r = ask("GET", f"/{quote(bucket)}?format=json&limit=10000&prefix={quote(prefix)}")
    return json.loads(r.text) if r.status == 200 else []


def objects(url, where):
    bucket, _, prefix = where.partition("/")
    for x in listing(swift(url), bucket, prefix):
        print(x["name"], x["bytes"])


def get(url, where, to):
    bucket, _, prefix = where.partition("/")
    ask = swift(url)
    for x in listing(ask, bucket, prefix + "/"):
        path = os.path.join(to, x["name"][len(prefix) + 1:])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(ask("GET", f"/{quote(bucket)}/{quote(x['name'])}").text)


def remove(url, where):
    bucket, _, prefix = where.partition("/")
    ask = swift(url)
    for x in listing(ask, bucket, prefix + "/"):
        for how in "?multipart-manifest=delete", "":
            ask("DELETE", f"/{quote(bucket)}/{quote(x['name'])}{how}")


# By S3 with its first kind of signatures, which is enough for a listing.
def open_uploads(url, bucket, prefix):
    date, path = email.utils.formatdate(usegmt=True), f"/{quote(bucket)}?uploads"
    signed = hmac.digest(b"testing", f"GET\n\n\n{date}\n{path}".encode(), "sha1")
    c = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    c.request("GET", f"{path}&prefix={quote(prefix)}", None,
              {"Date": date, "Authorization": f"AWS test:tester:{base64.b64encode(signed).decode()}"})
    r = c.getresponse()
    if r.status not in (200, 404):
        sys.exit(f"{path}: {r.status}")
    return [e.text for e in ElementTree.fromstring(r.read()).iter() if e.tag.endswith("}Key")]


# Swift keeps the parts of uploads in a separate bucket, as KEY/UPLOAD/NUMBER, with an entry KEY/UPLOAD while the upload
# is open. Parts of completed uploads stay there, because they hold the object's bytes.
def uploads(url, where):
    bucket, _, prefix = where.partition("/")
    if os.environ["S3_SERVER"] != "swift":
        for key in open_uploads(url, bucket, prefix):
            print(key)
        return
    ask = swift(url)
    visible = {x["name"] for x in listing(ask, bucket, prefix)}
    for x in listing(ask, bucket + "+segments", prefix):
        key, *rest = x["name"].rsplit("/", 2 if x["name"].rsplit("/", 1)[1].isdigit() else 1)
        if len(rest) == 1 or key not in visible:
            print(x["name"])


def s3(url, where, *tops):
    bucket, _, prefix = where.partition("/")
    ask = swift(url)
    ask("PUT", f"/{quote(bucket)}", None, {"Content-Length": "0"})
    for top in tops:
        # Metadata last, as frameworks write them.
        for name, path in sorted(files_in(top), key=lambda x: (os.path.basename(x[0])[0] == ".", x)):
            key = f"{prefix}/{name}" if prefix else name
            with open(path, "rb") as f:
                ask("PUT", f"/{quote(bucket)}/{quote(key)}", f.read())


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
    {"s3": s3, "objects": objects, "uploads": uploads, "get": get, "remove": remove, "hub": hub}[what](*args)


main()
