-- Positions in change feeds: a hash with `sequence` and `token`; with `read_until`, a time; with a `generation`, which grows when the
-- feed is read anew; and with the process that follows the feed: `holder` until `expires_at`, in
-- milliseconds since 2006.

-- Claims a feed, or renews the claim. It lasts for a time in milliseconds.
--
-- KEYS: feed. ARGV: holder, time.
-- Returns whether it succeeded; the position, 0 if there is none; the generation; and until when it was
-- read, 0 if it is not known.
-- Needs: hmget, hset, time.
local function claim_feed(keys, args)
  local now, time = now_ms(), tonumber(args[2])
  local state =
    redis.call('HMGET', keys[1], 'holder', 'expires_at', 'sequence', 'token', 'generation', 'read_until')
  local left = tonumber(state[2] or 0) - now
  -- More than a whole claim is left only if a clock was ahead.
  if state[1] and state[1] ~= args[1] and left > 0 and left <= time then
    return { 0, 0, 0, 0, 0 }
  end
  redis.call('HSET', keys[1], 'holder', args[1], 'expires_at', integer(now + time))
  return { 1, tonumber(state[3] or 0), tonumber(state[4] or 0), tonumber(state[5] or 0),
    tonumber(state[6] or 0) }
end

-- Ends the claim of a process that cannot follow a feed, if it still has it.
--
-- KEYS: feed. ARGV: holder. Needs: hget, hset.
local function release_feed(keys, args)
  if redis.call('HGET', keys[1], 'holder') == args[1] then
    redis.call('HSET', keys[1], 'expires_at', 0)
  end
end

-- Sets the position, if the process still follows the feed.
--
-- KEYS: feed. ARGV: holder, sequence, token, generation, until when it is read.
-- Returns whether it succeeded. Needs: hget, hset.
local function advance_feed(keys, args)
  if redis.call('HGET', keys[1], 'holder') ~= args[1] then
    return 0
  end
  redis.call('HSET', keys[1], 'sequence', args[2], 'token', args[3], 'generation', args[4],
    'read_until', args[5])
  return 1
end

register('note_claim_feed', claim_feed, 'allow-oom')
register('note_release_feed', release_feed, 'allow-oom')
register('note_advance_feed', advance_feed, 'allow-oom')
