import pytest

from keima.cluster.http.protocol import Link, WrongLink, parse_link

SECRET, FINGERPRINT = "s" * 24, "ab" * 32


@pytest.mark.parametrize("address", ["https://example.org:8443", "https://[::1]:8443", "https://example.org/keima"])
def test_a_link_is_read_as_it_is_written(address: str) -> None:
    for link in (Link(address, SECRET), Link(address, SECRET, FINGERPRINT)):
        assert parse_link(str(link)) == link
    assert parse_link(f"  {Link(address, SECRET)}\n") == Link(address, SECRET)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        f"http://example.org/#{SECRET}",
        "https://example.org/",
        "https://example.org/#short",
        f"https://example.org/#{SECRET}.abc",
        f"https://example.org/?x=1#{SECRET}",
        f"https://user@example.org/#{SECRET}",
        f"https://example.org:0/#{SECRET}",
        f"https://example.org:port/#{SECRET}",
    ],
)
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(WrongLink):
        parse_link(text)
