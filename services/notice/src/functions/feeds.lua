-- Positions in change feeds: a hash with `sequence` and `token`, and with the process that follows the
-- feed: `holder` until `expires_at`, in milliseconds since 2024.

-- Claims a feed, or renews the claim. It lasts for a time in milliseconds.
--
-- KEYS: feed. ARGV: holder, time.
-- Returns whether it succeeded, and the position; 0 if there is none.
-- Needs: hmget, hset, time.
local function claim_feed(keys, args)
  local now = now_ms()
  local state = redis.call('HMGET', keys[1], 'holder', 'expires_at', 'sequence', 'token')
  if state[1] and state[1] ~= args[1] and now < tonumber(state[2]) then
    return { 0, 0, 0 }
  end
  redis.call('HSET', keys[1], 'holder', args[1], 'expires_at', integer(now + tonumber(args[2])))
  return { 1, tonumber(state[3] or 0), tonumber(state[4] or 0) }
end

-- Sets the position, if the process still follows the feed.
--
-- KEYS: feed. ARGV: holder, sequence, token.
-- Returns whether it succeeded. Needs: hget, hset.
local function advance_feed(keys, args)
  if redis.call('HGET', keys[1], 'holder') ~= args[1] then
    return 0
  end
  redis.call('HSET', keys[1], 'sequence', args[2], 'token', args[3])
  return 1
end

register('note_claim_feed', claim_feed)
register('note_advance_feed', advance_feed, 'allow-oom')
