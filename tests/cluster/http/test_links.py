from pathlib import Path

import pytest

from keima.cluster.http.links import NoSuchLink, find_link, make_link, read_links, revoke_link

DAY = 86_400.0


def test_a_link_is_valid_until_it_expires(tmp_path: Path) -> None:
    link = make_link(tmp_path, "anna", days=2, now=1000.0)
    assert find_link(read_links(tmp_path), link.secret) == link
    assert not link.problem_at(1000 + 2 * DAY - 1)
    assert "expired" in link.problem_at(1000 + 2 * DAY)


def test_a_second_link_of_a_name_lets_the_first_expire_and_not_be_revoked(tmp_path: Path) -> None:
    first, second = make_link(tmp_path, "anna", now=1.0), make_link(tmp_path, "anna", now=2.0)
    stored = find_link(read_links(tmp_path), first.secret)
    assert stored is not None and stored.expires == 2.0 and stored.revoked is None
    assert first.id != second.id


def test_revoking_a_name_ends_all_of_its_links_and_no_others(tmp_path: Path) -> None:
    first, second, other = (make_link(tmp_path, name, now=1.0) for name in ("anna", "anna", "ben"))
    revoke_link(tmp_path, "anna", now=5.0)
    ends = {link.secret: link.revoked for link in read_links(tmp_path)}
    assert ends == {first.secret: 5.0, second.secret: 5.0, other.secret: None}
    with pytest.raises(NoSuchLink, match="valid links: ben"):
        revoke_link(tmp_path, "anna")


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a name"):
        make_link(tmp_path, "../x")


def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    make_link(tmp_path, "anna")
    (tmp_path / "links.json").write_text("{")
    with pytest.raises(ValueError, match="delete it"):
        read_links(tmp_path)


def test_only_the_user_can_read_the_secrets(tmp_path: Path) -> None:
    make_link(tmp_path, "anna")
    assert (tmp_path / "links.json").stat().st_mode & 0o077 == 0
