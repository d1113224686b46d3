"""`AuthorizationRules` of queues and topics as the administration API describes them.

This is the one answer of the broker that shows keys, to whoever has Manage on the entity. No refusal repeats a value
that may be one.
"""

import base64
import os
from typing import Final
from xml.etree.ElementTree import Element

from spillway.admin.atom import TYPE, children_of, local_name, tag, text_of
from spillway.admin.durations import moment_text
from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.model import limits
from spillway.model.access import AccessRule, access_rules_problem, rights_names, rights_of, rights_problem

ELEMENT: Final = "AuthorizationRules"
RULE: Final = "AuthorizationRule"
KIND: Final = "SharedAccessAuthorizationRule"
CLAIM_TYPE: Final = "SharedAccessKey"
CLAIM_VALUE: Final = "None"
KEY_BYTES: Final = 32
FIELDS: Final = frozenset(
    {"ClaimType", "ClaimValue", "Rights", "CreatedTime", "ModifiedTime", "KeyName", "PrimaryKey", "SecondaryKey"}
)


def read_access_rules(element: Element) -> list[AccessRule]:
    """Rules as they were sent. A key that was left out is empty, the times are not for the client to say."""
    if len(element) > limits.ACCESS_RULES_MAX:
        raise bad_rule(f"an entity has at most {limits.ACCESS_RULES_MAX} shared access rules, not {len(element)}")
    return [read_access_rule(child) for child in element]


def read_access_rule(element: Element) -> AccessRule:
    if local_name(element) != RULE:
        raise bad_rule(f"each of them is an '{RULE}'")
    kind = element.get(TYPE, KIND).rpartition(":")[2]
    if kind != KIND:
        raise bad_rule(f"the one type that is served is '{KIND}'")
    fields = children_of(element)
    if not set(fields) <= FIELDS:
        raise bad_rule(f"a rule has {', '.join(sorted(FIELDS))}, and nothing else")
    texts = {name: text_of(child) for name, child in fields.items()}
    if texts.get("ClaimType", CLAIM_TYPE) != CLAIM_TYPE or texts.get("ClaimValue", CLAIM_VALUE) != CLAIM_VALUE:
        raise bad_rule(f"the ClaimType is '{CLAIM_TYPE}' and the ClaimValue '{CLAIM_VALUE}'")
    names = [text_of(child) for child in fields.get("Rights", ())]
    problem = rights_problem(names)
    if problem is not None:
        raise bad_rule(problem)
    return AccessRule(
        texts.get("KeyName", ""), rights_of(names), texts.get("PrimaryKey", ""), texts.get("SecondaryKey", "")
    )


def completed(asked: list[AccessRule], before: list[AccessRule], now_ms: int) -> list[AccessRule]:
    """Rules with what was left out: a rule that is there already keeps its keys, a new one gets random ones."""
    known = {rule.name.lower(): rule for rule in before}
    rules: list[AccessRule] = []
    for rule in asked:
        was = known.get(rule.name.lower())
        made = AccessRule(
            rule.name,
            rule.rights,
            rule.primary_key or (was.primary_key if was is not None else new_key()),
            rule.secondary_key or (was.secondary_key if was is not None else new_key()),
            now_ms if was is None else was.created_ms,
            now_ms,
        )
        if was is not None and was.allows_the_same(made) and was.name == made.name:
            made.modified_ms = was.modified_ms
        rules.append(made)
    problem = access_rules_problem(rules)
    if problem is not None:
        raise bad_rule(problem)
    return rules


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def access_rules_xml(rules: list[AccessRule]) -> str:
    return f"<{ELEMENT}>{''.join(access_rule_xml(rule) for rule in rules)}</{ELEMENT}>"


def access_rule_xml(rule: AccessRule) -> str:
    rights = "".join(tag("AccessRights", name) for name in rights_names(rule.rights))
    return (
        f'<{RULE} i:type="{KIND}">{tag("ClaimType", CLAIM_TYPE)}{tag("ClaimValue", CLAIM_VALUE)}'
        f"<Rights>{rights}</Rights>{tag('CreatedTime', moment_text(rule.created_ms))}"
        f"{tag('ModifiedTime', moment_text(rule.modified_ms))}{tag('KeyName', rule.name)}"
        f"{tag('PrimaryKey', rule.primary_key)}{tag('SecondaryKey', rule.secondary_key)}</{RULE}>"
    )


def bad_rule(problem: str) -> HttpRefusal:
    return bad_request(f"{ELEMENT}: {problem}.")
