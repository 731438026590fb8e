-- The Redis functions of the timeline service: user timelines, home timelines and fan-out streams.
-- All keys of a user are in the user's partition. The functions do not decode records, except the
-- post id at their beginning.
--
-- User timeline: a head of 16 bytes, then records of 16 bytes in the order of posts. Head: byte 0
-- is the fan-out state; bytes 1 to 4 are the time of the last start of a switch to fan-out on read,
-- in seconds since 2024; byte 7 makes sure that no post id matches; bytes 8 to 15 are the post down
-- to which the post service has no other posts: 0 if it has none at all, above all
-- posts in a new timeline, which has only posts that were delivered since.
--
-- Home timeline: a head of 40 bytes, then a ring of records of 20 bytes in order of insertion. The
-- string has the full size of the ring, which grows in steps. Head:
--
--   offset  size  content
--    0       1    format, 1; a timeline of another format is deleted and rebuilt at the next read
--    1       1    whether the first build is complete: 0 or 1
--    2       2    ring position of the next record
--    4       2    number of records
--    6       4    number of records pushed since the edition began
--   10       4    time of the last recorded read, in hours since 1970
--   14       2    unused
--   16       8    edition: changes with each replacement
--   24       8    version of the newest follow that it reflects
--   32       4    start of the build lease, in seconds since 2024; 0 without a lease
--   36       4    time of the last rebuild, in seconds since 2024

local USER_HEAD, USER_RECORD = 16, 16
local HOME_FORMAT, HOME_HEAD, HOME_RECORD = 1, 40, 20

-- The size of a pulled author's id.
local PULL = 8

-- The length of a user timeline, and how far it may grow before it is trimmed.
local USER_MAX, USER_SLACK = 1000, 250
local HOME_MAX = 800

-- Fan-out states of an author.
local ON_WRITE, SWITCHING, ON_READ = 0, 1, 2

-- Returns whether a timeline has a record that begins with these 8 bytes.
local function has(timeline, head, width, post)
  local at = string.find(timeline, post, head + 1, true)
  while at do
    if (at - 1 - head) % width == 0 then
      return true
    end
    at = string.find(timeline, post, at + 1, true)
  end
  return false
end

-- Returns the time in seconds since 2024.
local function now_seconds()
  return math.floor(now_ms() / 1000)
end
