"""Atom in and out: an entry around one description, a feed of them, an error.

What comes in is read by namespace, never by prefix, and without a DTD: nothing is expanded, nothing fetched
(bad input B15).
What goes out is written by hand in the service's order, because clients look at prefixes and at the order of links.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape, quoteattr

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from spillway.admin.durations import second_text
from spillway.admin.http_refusals import bad_request

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
TYPE: Final = f"{{{SCHEMA_INSTANCE}}}type"

# A description with a hundred rule values has some two thousand; a tree of a million costs 100 MB.
ELEMENTS_MAX: Final = 10_000
_OURS: Final = f"{{{SERVICE_BUS}}}"
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse_description(body: bytes) -> Element:
    """The one description inside the entry. Raises a fault that says what is wrong."""
    if body.count(b"<") > 2 * ELEMENTS_MAX:
        raise bad_request(f"The body has more than {ELEMENTS_MAX} elements.")
    try:
        root = fromstring(body, forbid_dtd=True)
    except DefusedXmlException:
        raise bad_request("The body has a DTD or entities; neither is read.") from None
    except (ParseError, ValueError, LookupError) as error:
        raise bad_request(f"The body is not XML: {str(error)[:200]}.") from None
    if root.tag != f"{{{ATOM}}}entry":
        raise bad_request(f"The body must be an 'entry' of the namespace {ATOM}.")
    contents = root.findall(f"{{{ATOM}}}content")
    if len(contents) != 1 or len(contents[0]) != 1:
        raise bad_request("The entry must have one 'content' with one description in it.")
    description: Element = contents[0][0]
    if not description.tag.startswith(_OURS):
        raise bad_request(f"The description must be of the namespace {SERVICE_BUS}.")
    return description


def local_name(element: Element) -> str:
    """The name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def children_of(element: Element) -> dict[str, Element]:
    """Children by name; an element that is there twice says two things."""
    found: dict[str, Element] = {}
    for child in element:
        if not str(child.tag).startswith(_OURS):
            raise bad_request(f"'{local_name(child)[:100]}' is not of the namespace {SERVICE_BUS}.")
        name = local_name(child)
        if name in found:
            raise bad_request(f"'{name[:100]}' is there more than once.")
        found[name] = child
    return found


def text_of(element: Element) -> str:
    return (element.text or "").strip()


# -- out --------------------------------------------------------------------------------------------------------


def tag(name: str, text: str) -> str:
    return f"<{name}>{escaped(text)}</{name}>"


def escaped(text: str) -> str:
    """What XML cannot hold, and AMQP can, is shown as U+FFFD: one such rule must not make a list unreadable."""
    return escape(_NOT_IN_XML.sub("\ufffd", text), {"\r": "&#xD;"})


def attribute(value: str) -> str:
    return quoteattr(_NOT_IN_XML.sub("\ufffd", value))


def description_xml(name: str, inner: str) -> str:
    return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">{inner}</{name}>'


@dataclass
class Entry:
    """`link` is relative inside a feed; `author` and `published` are left out where the service leaves them out."""

    id: str
    title: str
    link: str
    updated_ms: int
    published_ms: int | None
    author: str | None
    content: str

    def xml(self, beginning: str = f'<entry xmlns="{ATOM}">') -> str:
        published = "" if self.published_ms is None else tag("published", second_text(self.published_ms))
        author = "" if self.author is None else f"<author>{tag('name', self.author)}</author>"
        return (
            f'{beginning}{tag("id", self.id)}<title type="text">{escaped(self.title)}</title>{published}'
            f"{tag('updated', second_text(self.updated_ms))}{author}"
            f'<link rel="self" href={attribute(self.link)}/>'
            f'<content type="application/xml">{self.content}</content></entry>'
        )


@dataclass
class Feed:
    title: str
    id: str
    updated_ms: int
    next_link: str | None = None
    entries: list[Entry] = field(default_factory=list)

    def xml(self) -> str:
        """Python pages by exactly two links, JavaScript by rel="next" (docs/wire.md, "Descriptions and feeds")."""
        following = "" if self.next_link is None else f'<link rel="next" href={attribute(self.next_link)}/>'
        beginning = f"<entry xml:base={attribute(self.id)}>"
        return (
            f'<feed xmlns="{ATOM}"><title type="text">{escaped(self.title)}</title>{tag("id", self.id)}'
            f'{tag("updated", second_text(self.updated_ms))}<link rel="self" href={attribute(self.id)}/>{following}'
            f"{''.join(entry.xml(beginning) for entry in self.entries)}</feed>"
        )


def nothing_here(tracking_id: str, now_ms: int) -> str:
    """What the service answers, with 200, to a GET of an entity that is not there; the SDKs know it."""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title><subtitle type="text">This is the '
        f"list of publicly-listed services currently available.</subtitle>{tag('id', f'uuid:{tracking_id};id=1')}"
        f"{tag('updated', second_text(now_ms))}<generator>Service Bus 1.1</generator></feed>"
    )


def error_xml(status: int, detail: str) -> str:
    return f"<Error>{tag('Code', str(status))}{tag('Detail', detail)}</Error>"
