from keima.base.reports.text import printable_line


def test_external_text_becomes_one_harmless_line() -> None:
    assert printable_line(" a\nb\x1b[31m\x9b2J\u202e c\t\x00") == "a b [31m 2J c"
