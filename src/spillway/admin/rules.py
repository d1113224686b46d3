"""Rules of subscriptions as the administration API describes them (docs/wire.md, "Descriptions and feeds")."""

from typing import Final
from xml.etree.ElementTree import Element

from spillway.admin.atom import TYPE, attribute, children_of, description_xml, escaped, local_name, tag, text_of
from spillway.admin.durations import moment_text
from spillway.admin.http_refusals import bad_request
from spillway.model.rule_values import DURATION, GUID, STRING, RuleValue
from spillway.model.rules import (
    DEFAULT_RULE,
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

XML_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"  # .NET's own types
PAIR: Final = "KeyValueOfstringanyType"
CORRELATION_FIELDS: Final = (
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)


# -- in ---------------------------------------------------------------------------------------------------------


def read_rule(element: Element, name: str, now_ms: int) -> Rule:
    """What the expressions say is checked by the core. Raises a fault if the description cannot be one of a rule."""
    fields = children_of(element)
    if "Name" in fields:
        written = text_of(fields["Name"])
        if not name:
            name = written or DEFAULT_RULE
        elif written and written.lower() != name.lower():
            raise bad_request(f"The rule is called '{written[:100]}' in the body and '{name}' in the path.")
    action = fields.get("Action")
    return Rule(
        name or DEFAULT_RULE, read_filter(fields.get("Filter")), None if action is None else read_action(action), now_ms
    )


def type_of(element: Element) -> str:
    """The local part of `xsi:type`: the prefix is whatever the client likes."""
    return element.get(TYPE, "").rpartition(":")[2]


def read_filter(element: Element | None) -> RuleFilter:
    if element is None:
        return TrueFilter()
    kind = type_of(element)
    fields = children_of(element)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        return SqlFilter(expression_of(fields), values_of(fields.get("Parameters")))
    if kind == "CorrelationFilter":
        given = {attribute_name: value_or_none(fields.get(tag_name)) for tag_name, attribute_name in CORRELATION_FIELDS}
        return CorrelationFilter(
            given["correlation_id"],
            given["message_id"],
            given["to"],
            given["reply_to"],
            given["label"],
            given["session_id"],
            given["reply_to_session_id"],
            given["content_type"],
            values_of(fields.get("Properties")),
        )
    raise bad_request(
        f"A Filter is a TrueFilter, FalseFilter, SqlFilter or CorrelationFilter by its i:type, not '{kind[:100]}'."
    )


def read_action(element: Element) -> SqlAction | None:
    kind = type_of(element)
    if kind == "EmptyRuleAction":
        return None
    if kind == "SqlRuleAction":
        fields = children_of(element)
        return SqlAction(expression_of(fields), values_of(fields.get("Parameters")))
    raise bad_request(f"An Action is an EmptyRuleAction or a SqlRuleAction by its i:type, not '{kind[:100]}'.")


def expression_of(fields: dict[str, Element]) -> str:
    expression = fields.get("SqlExpression")
    if expression is None or not expression.text:
        raise bad_request("A SQL filter or action must have a SqlExpression.")
    return expression.text


def value_or_none(element: Element | None) -> str | None:
    return None if element is None else element.text or ""


def values_of(element: Element | None) -> dict[str, RuleValue]:
    """Typed values keep their text, so that they come back as they went in."""
    values: dict[str, RuleValue] = {}
    if element is None:
        return values
    for pair in element:
        if local_name(pair) != PAIR:
            raise bad_request(f"Parameters and Properties are made of {PAIR}, not of '{local_name(pair)[:100]}'.")
        fields = {local_name(child): child for child in pair}
        key, value = fields.get("Key"), fields.get("Value")
        if key is None or not key.text or value is None:
            raise bad_request(f"Each {PAIR} must have a Key and a Value.")
        if key.text in values:
            raise bad_request(f"The key '{key.text[:100]}' is there more than once.")
        values[key.text] = RuleValue(type_of(value) or STRING, value.text or "")
    return values


# -- out --------------------------------------------------------------------------------------------------------


def write_rule(rule: Rule, is_stored: bool) -> str:
    """The answer to a PUT leaves empty Parameters out; what is read from the store has them."""
    inner = write_filter(rule.filter, is_stored) + write_action(rule.action, is_stored)
    return description_xml(
        "RuleDescription", inner + tag("CreatedAt", moment_text(rule.created_ms)) + tag("Name", rule.name)
    )


def write_filter(wanted: RuleFilter, is_stored: bool) -> str:
    if isinstance(wanted, SqlFilter):
        return typed("Filter", "SqlFilter", sql_xml(wanted.expression, wanted.parameters, is_stored))
    if isinstance(wanted, CorrelationFilter):
        return typed("Filter", "CorrelationFilter", correlation_xml(wanted))
    # JavaScript looks at the expression alone.
    if isinstance(wanted, FalseFilter):
        return typed("Filter", "FalseFilter", constant_xml(FALSE_EXPRESSION))
    return typed("Filter", "TrueFilter", constant_xml(TRUE_EXPRESSION))


def write_action(action: SqlAction | None, is_stored: bool) -> str:
    """Always there: JavaScript does not ask whether it is."""
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return typed("Action", "SqlRuleAction", sql_xml(action.expression, action.parameters, is_stored))


def typed(name: str, kind: str, inner: str) -> str:
    return f'<{name} i:type="{kind}">{inner}</{name}>'


def constant_xml(expression: str) -> str:
    return tag("SqlExpression", expression) + tag("CompatibilityLevel", "20")


def sql_xml(expression: str, parameters: dict[str, RuleValue], is_stored: bool) -> str:
    """Parameters stand before RequiresPreprocessing when there are any, and behind it when there are none."""
    before = values_xml("Parameters", parameters) if parameters else ""
    behind = "<Parameters/>" if is_stored and not parameters else ""
    return constant_xml(expression) + before + tag("RequiresPreprocessing", "true") + behind


def correlation_xml(wanted: CorrelationFilter) -> str:
    given = (
        wanted.correlation_id,
        wanted.message_id,
        wanted.to,
        wanted.reply_to,
        wanted.label,
        wanted.session_id,
        wanted.reply_to_session_id,
        wanted.content_type,
    )
    names = (tag_name for tag_name, _ in CORRELATION_FIELDS)
    inner = "".join(tag(name, text) for name, text in zip(names, given, strict=True) if text is not None)
    return inner + (values_xml("Properties", wanted.properties) if wanted.properties else "")


def values_xml(name: str, values: dict[str, RuleValue]) -> str:
    pairs = "".join(
        f"<{PAIR}>{tag('Key', key)}<Value i:type={attribute('d6p1:' + value.kind)} "
        f'xmlns:d6p1="{type_namespace(value.kind)}">{escaped(value.text)}</Value></{PAIR}>'
        for key, value in values.items()
    )
    return f"<{name}>{pairs}</{name}>"


def type_namespace(kind: str) -> str:
    return SERIALIZATION if kind in (DURATION, GUID, "char") else XML_SCHEMA
