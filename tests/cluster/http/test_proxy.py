"""The door behind a real reverse proxy, which has the certificate."""

import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from keima.cluster.http.client import DoorClient, WrongServer
from keima.cluster.http.protocol import Link, Registration, SyncRequest, WorkerReport
from tests.cluster.http.open_door import CODE, KEY, OpenDoor, assignment, batch_file, open_door, sha256

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

CONFIG = """
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
daemon off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/site.crt;
        ssl_certificate_key {folder}/site.key;
        location /keima/ {{
            proxy_pass http://127.0.0.1:{door}/;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            client_max_body_size 4m;
        }}
    }}
}}
"""


def make_site_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1 that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a site")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "site.crt").write_bytes(made.public_bytes(pem))
    unencrypted = serialization.NoEncryption()
    (folder / "site.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted))


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as opened:
        return int(opened.getsockname()[1])


def accepts_connections(port: int) -> bool:
    with closing(socket.socket()) as opened:
        return opened.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenDoor]:
    """A door whose link leads to nginx."""
    make_site_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "site.crt"))
    with open_door(tmp_path / "crowd", behind_proxy=True) as opened:
        port = free_port()
        config = tmp_path / "nginx.conf"
        config.write_text(
            CONFIG.format(user="" if os.geteuid() else "user root;", folder=tmp_path, port=port, door=opened.port),
            encoding="utf-8",
        )
        proxy = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(config)], env=dict(os.environ))
        opened.link = Link(f"https://127.0.0.1:{port}/keima", opened.link.secret)
        deadline = time.monotonic() + 120
        while not accepts_connections(port):
            assert time.monotonic() < deadline, (tmp_path / "error.log").read_text()
            time.sleep(0.05)
        yield opened
        for client in opened.clients:
            client.close()
        proxy.terminate()
        proxy.wait(120)


def test_machines_join_through_a_proxy_in_a_folder_of_its_site(door: OpenDoor, tmp_path: Path) -> None:
    assert door.client().read_run().code == CODE
    (worker,) = door.client().register(Registration(name="Anna", workers=1, key=KEY)).workers
    mailbox, large = door.mailbox(worker), bytes(range(256)) * 2**13
    mailbox.model_path(1).write_bytes(large)
    mailbox.write_assignment(assignment(worker))
    client = door.client(key=KEY)
    report = WorkerReport(worker=worker)
    orders = client.sync(SyncRequest(session="s", code=CODE, workers=(report,))).orders[0]
    client.fetch_file(worker, orders.files[0], tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == large
    name = batch_file(worker, large)
    client.send_batch(worker, name, large, sha256(large), offset=0)
    assert (mailbox.outbox / name).read_bytes() == large


def test_a_proxy_with_a_certificate_that_nobody_knows_is_refused(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(WrongServer), DoorClient(door.link) as client:
        client.read_run()
