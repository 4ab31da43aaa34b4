"""The door's own certificate: self-signed, and known to those who join by its fingerprint in the link."""

import datetime
import hashlib
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from keima.base.files import write_atomically

CERTIFICATE, KEY = "door.crt", "door.key"
YEARS = 10  # a link with its fingerprint is valid as long as the run, and clocks of other machines may be wrong


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of the certificate and its key in ``folder``; they are made if they are missing.

    The key is on the curve P-256, which every TLS library has.

    Raises:
        OSError: they cannot be written.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    if certificate.is_file() and key.is_file():
        return certificate, key
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Keima")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=366))
        .not_valid_after(now + datetime.timedelta(days=366 * YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    unencrypted = serialization.NoEncryption()
    pem, traditional = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_atomically(key, private.private_bytes(pem, traditional, unencrypted))
    write_atomically(certificate, signed.public_bytes(pem))
    return certificate, key


def read_fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate file, in hexadecimal.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii")))


def fingerprint_of(der: bytes) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal."""
    return hashlib.sha256(der).hexdigest()
