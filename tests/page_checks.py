"""What holds for every page that the haul command writes."""
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "input", "img"}


class Tree(HTMLParser):
    """Elements with their attributes and the text right inside; complains of what does not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.ids = [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.getpos(), self.open[-1:])
        self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.open[-1][2] += data

    def all(self, tag):
        return [e for e in self.elements if e[0] == tag]


def luminance(colour):
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_colours(css):
    """Text 4.5 to 1, what is drawn 3 to 1, in light and in dark (WCAG 2.1, 1.4.3 and 1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    assert len(blocks) == 2
    colours = {}
    for block in blocks:
        colours.update(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for ground in ("page", "card"):
            for name in ("text", "quiet", "good", "bad"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground, block)
        drawn = set(colours) - {"page", "card", "text", "quiet", "good", "bad", "line"}
        for name in drawn:
            assert contrast(colours[name], colours["card"]) >= 3, (name, colours[name])


def check_page(text):
    """One page of its own: nothing from elsewhere, elements nest, drawings and tables have names. Returns the tree."""
    tree = Tree(text)
    assert text.startswith("<!doctype html>") and tree.all("html")[0][1]["lang"] == "en"
    assert "default-src 'none'" in text and "width=device-width" in text
    assert not re.search(r"https?://|@import|url\(", text), "something from the network"
    assert len(tree.ids) == len(set(tree.ids)), "an id stands twice"
    for svg in tree.all("svg"):
        assert svg[1]["role"] == "img"
        for name in svg[1]["aria-labelledby"].split():
            assert name in tree.ids, name
    for tag, attrs, _ in tree.elements:
        if "tabindex" in attrs:
            assert attrs.get("aria-label"), (tag, attrs)
    check_colours(re.search(r"<style>(.*?)</style>", text, re.S).group(1))
    return tree


def check_in_browser(browser, path, folder, controls):
    """No complaints, no requests; fits a phone; the Tab key reaches every one of `controls` (a selector)."""
    browser.size(1280, 900, False)
    browser.open(path)
    assert browser.complaints() == [], browser.complaints()
    assert browser.requests() == [], browser.requests()
    for width, dark in ((1280, False), (1280, True), (375, False), (375, True)):
        browser.look(width, 900, dark, "%s/page-%d-%s.png" % (folder, width, "dark" if dark else "light"))
        wide = browser.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "%d wide on %d" % (wide, width)
    browser.size(1280, 900, False)
    shown = "[...document.querySelectorAll(%r)].filter(e => e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true}))" % controls
    wanted = browser.evaluate(shown + ".length")
    browser.evaluate("window.seen = new Set(); document.addEventListener('focusin', e => window.seen.add(e.target)); 1")
    for _ in range(3 * wanted + 20):
        browser.key("Tab")
    reached = browser.evaluate(shown + ".filter(e => window.seen.has(e)).length")
    assert reached == wanted > 0, "the Tab key reaches %d of %d" % (reached, wanted)
    assert browser.complaints() == []
