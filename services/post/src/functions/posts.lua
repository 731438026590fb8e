-- Publishing and deleting posts, and notifying posts of their reposts.

-- Publishes a post.
--
-- KEYS: clock, request, post_rate, forgotten, authors, outbox, pending; the author's posts; the
--       prefix of the partition's post keys.
-- ARGV: issuer, author, content, limit per minute, lifetime of the idempotency key in seconds, the
--       request's id, posts… that count it, if it is a repost.
-- Returns the outcome, and: the id (DONE; UNCHANGED, INCOMPLETE: of the post that the request made
-- before), or the milliseconds to wait (THROTTLED).
local function publish(keys, args)
  local clock, request, rate, forgotten, authors = keys[1], keys[2], keys[3], keys[4], keys[5]
  local outbox, pending, posts, prefix = unpack(keys, 6)
  local issuer, author, content, limit = tonumber(args[1]), args[2], args[3], tonumber(args[4])
  local targets = rest(args, 7)

  local known = redis.call('GET', request)
  if known then
    local is_incomplete = redis.call('ZSCORE', outbox, known)
    for _, target in ipairs(targets) do
      is_incomplete = is_incomplete or redis.call('ZSCORE', pending, pending_member(known, target))
    end
    return { is_incomplete and INCOMPLETE or UNCHANGED, tonumber(known) }
  end
  if redis.call('SISMEMBER', forgotten, author) == 1 then
    return { ACCOUNT_DELETED, 0 }
  end
  local prepared = prepare(clock, issuer, 1)
  local wait = check_rate(rate, limit)
  if wait > 0 then
    return { THROTTLED, wait }
  end

  local id = issue_prepared(prepared)[1]
  append_change('post', author, args[6], id)
  redis.call('HSET', prefix .. id, 'b', content)
  redis.call('ZADD', posts, id, id)
  redis.call('SADD', authors, author)
  redis.call('ZADD', outbox, id, id)
  for _, target in ipairs(targets) do
    redis.call('ZADD', pending, id, pending_member(id, target))
  end
  redis.call('SET', request, id, 'EX', args[5])
  return { DONE, tonumber(id) }
end

-- Deletes a post and all that belongs to it, from Redis and from the archive.
--
-- KEYS: clock, outbox, pending, evictable, post_tombstones; the author's posts; of the post: post,
--       likes, comments, comment_bodies, reposts, repost_tombstones, restoring (which ends a
--       restore).
-- ARGV: issuer, id, 1 if it was read from the archive, posts… that count it.
-- Returns the outcome (DONE; INCOMPLETE: deleted before, and a post that counts it may not be
-- notified; NOT_FOUND) and the version of the deletion.
local function delete(keys, args)
  local clock, outbox, pending, evictable, post_tombstones, posts, post = unpack(keys)
  local issuer, id, in_archive, targets = tonumber(args[1]), args[2], args[3] == '1', rest(args, 4)
  -- A tombstone means deleted before: the archive did not have the deletion when it was read.
  in_archive = in_archive and not redis.call('ZSCORE', post_tombstones, id)
  if redis.call('EXISTS', post) == 0 and not in_archive then
    for _, target in ipairs(targets) do
      local version = redis.call('ZSCORE', pending, pending_member(id, target))
      if version then
        return { INCOMPLETE, tonumber(version) }
      end
    end
    return { NOT_FOUND, 0 }
  end
  local version = issue(clock, issuer, 1)[1]
  append_change('unpost', id, version)
  call_with('UNLINK', post, { unpack(keys, 8, 13) })
  local is_listed = redis.call('ZREM', posts, id) == 1
  if not is_listed then
    add_unlisted(posts, -1)
  end
  if journal.version then
    -- Stays until the archive has the deletion (see record/tombstones.rs).
    redis.call('ZADD', post_tombstones, version, id)
    redis.call('PERSIST', post_tombstones)
  elseif not is_listed then
    bury(post_tombstones, { version, id })
  end
  redis.call('ZREM', outbox, id)
  redis.call('ZREM', evictable, id)
  for _, target in ipairs(targets) do
    redis.call('ZADD', pending, version, pending_member(id, target))
  end
  return { DONE, tonumber(version) }
end

-- Notifies a post of a repost that was created or deleted. Idempotent and commutative: a tombstone
-- keeps a deleted repost from coming back.
--
-- KEYS: of the post: post, reposts, repost_tombstones. ARGV: post, repost, 1 if it exists.
-- Returns the outcome: DONE, UNCHANGED, NOT_FOUND.
local function notify(keys, args)
  local post, reposts, repost_tombstones = keys[1], keys[2], keys[3]
  local id, repost, exists = args[1], args[2], args[3] == '1'
  if redis.call('EXISTS', post) == 0 then
    return NOT_FOUND
  end
  if exists then
    if redis.call('ZSCORE', repost_tombstones, repost) or redis.call('ZSCORE', reposts, repost) then
      return UNCHANGED
    end
    append_change('repost', id, repost)
    redis.call('ZADD', reposts, repost, repost)
    count(post, 'r', 1)
    return DONE
  end
  append_change('unrepost', id, repost, stamp_of_end(id, repost))
  -- Scored by the current time: the deletion itself may be older than the lifetime of tombstones.
  bury(repost_tombstones, { integer(now_ms() * 4096), repost })
  if redis.call('ZREM', reposts, repost) == 0 then
    return UNCHANGED
  end
  count(post, 'r', -1)
  return DONE
end

register_change('post_publish', publish)
register_change('post_delete', delete, 'allow-oom')
register_change('post_notify', notify, 'allow-oom')
register_change('post_forget', forget, 'allow-oom')
register_change('post_finish_forgetting', finish_forgetting, 'allow-oom')
