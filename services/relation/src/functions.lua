-- The atomic steps of the relation service. Each runs in one partition and touches nothing else.
-- This is the beginning of the library, which the files in functions/ share; they follow it.
--
-- What must hold, whatever is repeated, reordered or lost between the steps (see edges.rs):
--   * an edge's versions are issued by its follower's partition, and only grow;
--   * the target's side keeps the newest version that it has heard of, of an edge that exists in
--     `followers`, of an edge that has ended in `lost`, and ignores what is not newer;
--   * a change of the follower's side that the target's side may not know is in `pending`;
--   * an id set has the members of its sorted set.
--
-- Functions do not roll back: nothing is written before every check is made. Variadic commands
-- carry at most a few hundred members, so that no call runs longer than about a millisecond;
-- the callers see to that.
--
-- Ids and versions are below 2^53, hence exact as Lua's numbers, and are written as integers.
--
-- `issue`, `integer`, `call_with`, `rest`, `bury` and `confirm` are the keyspace's own.

-- What a step did; graph.rs has the same numbers.
local DONE, UNCHANGED, PENDING = 0, 1, 2
local BLOCKED_BY_TARGET, TARGET_BLOCKED, LIMIT, FORGOTTEN, NOTHING = 3, 4, 5, 6, 7

-- What waits in `pending`: a change of a follow, a change of a block.
local function waiting_follow(follower, target)
  return 'follow:' .. follower .. '>' .. target
end

local function waiting_block(user, target)
  return 'block:' .. user .. '>' .. target
end

-- Takes changes out of `pending`, each unless a newer one of the same edge has come in.
register('relation_confirm', confirm, 'allow-oom')
