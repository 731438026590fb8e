-- Deletions of accounts: the atomic steps of `account_deletions.rs`.

-- Adds a deleted account to `forgotten` for ever, and to `forgetting`, with a stamp, until its data
-- are deleted. A service registers it as a
-- change. Needs SADD, SISMEMBER, ZADD and what `issue` and `append_change` do.
--
-- KEYS: clock, forgotten, forgetting. ARGV: issuer, account.
local function forget(keys, args)
  local clock, forgotten, forgetting = keys[1], keys[2], keys[3]
  if redis.call('SISMEMBER', forgotten, args[2]) == 0 then
    local stamp = issue(clock, tonumber(args[1]), 1)[1]
    append_change('forget', args[2], stamp)
    redis.call('SADD', forgotten, args[2])
    redis.call('ZADD', forgetting, stamp, args[2])
  end
end

-- Completes the deletion of an account whose lists are empty: deletes its other keys. A service
-- registers it as a change. Needs EXISTS, SREM, UNLINK, ZREM, and what `append_change` does.
--
-- KEYS: forgetting, the set of accounts with data; lists that must be empty…, other keys….
-- ARGV: account, the number of lists that must be empty. Returns 1 if it is complete.
local function finish_forgetting(keys, args)
  if redis.call('EXISTS', unpack(keys, 3, 2 + args[2])) > 0 then
    return 0
  end
  append_change('forgotten', args[1], now_stamp(args[1]))
  redis.call('UNLINK', unpack(keys, 3))
  redis.call('SREM', keys[2], args[1])
  redis.call('ZREM', keys[1], args[1])
  return 1
end
