"""A headless Chromium that is told what to emulate, and asked what it did."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
OFFLINE = dict(offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
PHONE, DESK = (390, 844), (1280, 900)


class Browser:
    """One tab. Every page opens with the network off, at desktop width, in the light theme, unless told otherwise."""

    def __init__(self, chromium: str, driver: str, profile: Path):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(120)
        self.cdp("Network.enable")
        self.cdp("Network.emulateNetworkConditions", **OFFLINE)

    def cdp(self, command: str, **options: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, options)

    def js(self, script: str, *arguments: Any) -> Any:
        """Evaluate in the page; not bound by its policy."""
        return self.driver.execute_script(script, *arguments)

    def open(self, page: Path, size=DESK, theme: str = "light", media: str = "", scripts: bool = True) -> None:
        """Open a file; the logs begin here."""
        self.show(size, theme, media)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.driver.get("about:blank")
        self.driver.get_log("performance"), self.driver.get_log("browser")
        self.driver.get(page.as_uri())

    def show(self, size=DESK, theme: str = "light", media: str = "") -> None:
        """The size of the screen, its theme, and the medium."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=size is PHONE,
        )
        self.cdp("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": theme}])

    def unfold(self) -> None:
        """Open every details element."""
        self.js("for (const one of document.querySelectorAll('details')) one.open = true")

    def requests(self) -> list[str]:
        """What was asked for since the page was opened."""
        messages = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def console(self) -> list[str]:
        """What the page complained about."""
        return [one["message"] for one in self.driver.get_log("browser")]

    def html(self) -> str:
        """The document as it stands, without running a script in it."""
        root = self.cdp("DOM.getDocument")["root"]["nodeId"]
        return self.cdp("DOM.getOuterHTML", nodeId=root)["outerHTML"]

    def pdf(self) -> bytes:
        """The page as it prints."""
        return b64decode(self.cdp("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])

    def violations(self, axe: str) -> list[str]:
        """What axe-core finds: rule and first element."""
        self.js(axe)
        run = (
            "const done = arguments[arguments.length - 1]; "
            "axe.run(document, {resultTypes: ['violations']}).then(one => done(one.violations))"
        )
        found = self.driver.execute_async_script(run)
        return [
            f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0].get('failureSummary', '')}" for one in found
        ]

    def quit(self) -> None:
        """Close it."""
        self.driver.quit()
