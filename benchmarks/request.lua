-- One request for wrk, sent repeatedly. Arguments: method, A2A version, body, the number of stored tasks (if it is not 0,
-- each "@" in the body is replaced by the number of a random one), and the number of connections whose first request is
-- delayed by a second. Prints its results as JSON.

function init(args)
  local method, version, body, stored, waiting = args[1], args[2], args[3], tonumber(args[4]), tonumber(args[5])
  wrk.method, wrk.headers["Content-Type"] = method, "application/json"
  if version ~= "" then wrk.headers["A2A-Version"] = version end
  if body ~= "" then wrk.body = body end
  if stored > 0 then
    request = function()
      return wrk.format(nil, nil, nil, (body:gsub("@", string.format("%012d", math.random(0, stored - 1)))))
    end
  end
  if waiting > 0 then
    delay = function()
      if waiting == 0 then return 0 end
      waiting = waiting - 1
      return 1000
    end
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"seconds":%f,"bytes":%d,"p50":%f,"p99":%f,"max":%f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, latency:percentile(50), latency:percentile(99), latency.max,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
