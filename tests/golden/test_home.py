"""Names of folders that nobody named."""

from __future__ import annotations

from parity.home import fresh, home


def test_a_devices_name_is_one_folder_whatever_its_options_hold():
    place = fresh("runs", "my.port:load,root=/a/b c,show=kv.*" + "x" * 500)
    assert place.parent == home() / "runs" and len(place.name) < 200
    assert place.name.split("-", 1)[1].startswith("my.port-load,root=-a-b-c,show=kv.-x")
