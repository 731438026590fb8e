-- Deletion of accounts. A marked account can have no new edges; its existing ones are removed.

-- Completes the deletion of an account whose lists are empty: removes its private data.
--
-- KEYS: forgetting, users; of the user: following, followers, blocks, blocked_by; its keys to
--       delete…
-- ARGV: user.
-- Returns 1 if it is done, 0 if there are entries left.
local function forgot(keys, args)
  if redis.call('EXISTS', keys[3], keys[4], keys[5], keys[6]) > 0 then
    return 0
  end
  redis.call('UNLINK', unpack(keys, 7))
  redis.call('SREM', keys[2], args[1])
  redis.call('ZREM', keys[1], args[1])
  return 1
end

register('relation_forget', forget, 'allow-oom')
register('relation_forgot', forgot, 'allow-oom')
