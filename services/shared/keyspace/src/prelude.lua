-- The start of every function library: registration, number formatting, argument lists, the time. It has no
-- key names.
--
-- Each function lists the commands it needs. The Redis user of a service must have access to them.

-- Registers a function with the suffix of this library version.
--
-- At `maxmemory`, Redis rejects a function without a flag (OOM), even one that frees memory.
-- `allow-oom` is for functions that free more than they take, that protect an account, and that
-- complete or record what is acknowledged already, which takes a bounded amount. Functions without
-- a flag are those by which the stored data grows.
local function register(name, callback, flag)
  redis.register_function({ function_name = name .. suffix, callback = callback, flags = { flag } })
end

-- Formats an integer below 2^53 in decimal digits. Lua's default format of long ones is 1e+15.
local function integer(number)
  return string.format('%.0f', number)
end

-- Calls a command that takes any number of arguments after its key. Needs that command.
local function call_with(command, key, arguments)
  return redis.call(command, key, unpack(arguments))
end

-- The epoch of stamps, 2006-01-01T00:00:00Z, in milliseconds since the Unix epoch.
local EPOCH_MS = 1136073600000

-- Returns the server's time since the epoch of stamps, in milliseconds. Needs TIME.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 - EPOCH_MS + math.floor(tonumber(time[2]) / 1000)
end
