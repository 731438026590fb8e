-- The start of every function library: registration, number formatting, argument lists. The files of
-- this folder precede the source of each library. They have no key names.
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

-- Returns the arguments from index `from`.
local function rest(args, from)
  local values = {}
  for i = from, #args do
    values[#values + 1] = args[i]
  end
  return values
end
