-- Posts: made, deleted, and forgotten with their author, who posts and comments no more.

-- Makes a post.
--
-- KEYS: clock, request, pace, forgotten, authors, outbox, pending, unarchived; the author's posts;
--       what the keys of the partition's posts begin with.
-- ARGV: issuer, author, content, limit per minute, seconds for which the request is
--       remembered, posts… that are told, if it is a repost.
-- Returns the outcome, and: the id (DONE; UNCHANGED, OPEN: of the post that the request made
-- before), or the milliseconds to wait (THROTTLED).
local function publish(keys, args)
  local clock, request, pace, forgotten, authors = keys[1], keys[2], keys[3], keys[4], keys[5]
  local outbox, pending, unarchived, posts, prefix = keys[6], keys[7], keys[8], keys[9], keys[10]
  local issuer, author, content, limit = tonumber(args[1]), args[2], args[3], tonumber(args[4])
  local targets = rest(args, 6)

  local known = redis.call('GET', request)
  if known then
    local is_open = redis.call('ZSCORE', outbox, known)
    for _, target in ipairs(targets) do
      is_open = is_open or redis.call('ZSCORE', pending, waiting_repost(known, target))
    end
    return { is_open and OPEN or UNCHANGED, tonumber(known) }
  end
  if redis.call('SISMEMBER', forgotten, author) == 1 then
    return { FORGOTTEN, 0 }
  end
  local prepared = prepare(clock, issuer, 1)
  local wait = admit(pace, limit)
  if wait > 0 then
    return { THROTTLED, wait }
  end

  local id = issue_prepared(prepared)[1]
  redis.call('HSET', prefix .. id, 'b', content)
  redis.call('ZADD', posts, id, id)
  redis.call('SADD', authors, author)
  redis.call('ZADD', outbox, id, id)
  note(unarchived, id, 'p' .. id)
  for _, target in ipairs(targets) do
    redis.call('ZADD', pending, id, waiting_repost(id, target))
  end
  redis.call('SET', request, id, 'EX', args[5])
  return { DONE, tonumber(id) }
end

-- Deletes a post with all that belongs to it, here and in the archive.
--
-- KEYS: clock, outbox, pending, unarchived, retired; the author's posts; of the post: post, likes,
--       comments, comment_bodies, reposts, unreposted, restoring (nobody brings it back); ended.
-- ARGV: issuer, id, 1 if the archive was seen to have it, posts… that were told of it.
-- Returns the outcome (DONE; OPEN: it was deleted before, and somebody may not have been told;
-- NOT_FOUND) and the version of its end.
local function delete(keys, args)
  local clock, outbox, pending, unarchived, retired = keys[1], keys[2], keys[3], keys[4], keys[5]
  local posts, post = keys[6], keys[7]
  local issuer, id, is_archived, targets = tonumber(args[1]), args[2], args[3] == '1', rest(args, 4)
  local ended = keys[14]
  -- What the archive does not know yet was deleted before, too; and what it knew since it was read.
  is_archived = is_archived and not redis.call('ZSCORE', unarchived, 'x' .. id)
    and not redis.call('ZSCORE', ended, id)
  if redis.call('EXISTS', post) == 0 and not is_archived then
    for _, target in ipairs(targets) do
      local version = redis.call('ZSCORE', pending, waiting_repost(id, target))
      if version then
        return { OPEN, tonumber(version) }
      end
    end
    return { NOT_FOUND, 0 }
  end
  local version = issue(clock, issuer, 1)[1]
  call_with('UNLINK', post, { unpack(keys, 8, 13) })
  if redis.call('ZREM', posts, id) == 0 then
    add_unlisted(posts, -1)
    bury(ended, { version, id })
  end
  redis.call('ZREM', outbox, id)
  redis.call('ZREM', retired, id)
  note(unarchived, version, 'x' .. id)
  for _, target in ipairs(targets) do
    redis.call('ZADD', pending, version, waiting_repost(id, target))
  end
  return { DONE, tonumber(version) }
end

-- Tells a post of a repost of it that came, or went. Order and repetition do not matter: what has
-- gone does not come back.
--
-- KEYS: of the post: post, reposts, unreposted. ARGV: repost, 1 if it exists.
-- Returns the outcome: DONE, UNCHANGED, NOT_FOUND.
local function tell(keys, args)
  local post, reposts, unreposted = keys[1], keys[2], keys[3]
  local repost, exists = args[1], args[2] == '1'
  if redis.call('EXISTS', post) == 0 then
    return NOT_FOUND
  end
  if exists then
    if redis.call('ZSCORE', unreposted, repost)
      or redis.call('ZADD', reposts, 'NX', repost, repost) == 0 then
      return UNCHANGED
    end
    count(post, 'r', 1)
    return DONE
  end
  -- By the time of the telling: the end itself may be longer ago than tombstones are kept.
  bury(unreposted, { integer(now_ms() * 4096), repost })
  if redis.call('ZREM', reposts, repost) == 0 then
    return UNCHANGED
  end
  count(post, 'r', -1)
  return DONE
end

-- Ends the forgetting of an account of which all else is erased, if it has no posts any more.
--
-- KEYS: forgetting, authors, the author's posts. ARGV: account. Returns 1 if it is done.
local function forgot(keys, args)
  if redis.call('EXISTS', keys[3]) == 1 then
    return 0
  end
  redis.call('SREM', keys[2], args[1])
  redis.call('ZREM', keys[1], args[1])
  return 1
end

register('post_publish', publish)
register('post_delete', delete, 'allow-oom')
register('post_tell', tell, 'allow-oom')
register('post_forget', forget, 'allow-oom')
register('post_forgot', forgot, 'allow-oom')
