CREATE MATERIALIZED VIEW cost_by_entity
COMMENT 'What each entity costs, by day and kind'
AS SELECT
    day,
    namespace,
    entity,
    kind,
    sum(operations) AS operations,
    sum(units) AS units,
    sum(cost) AS cost
FROM charges
GROUP BY day, namespace, entity, kind;
