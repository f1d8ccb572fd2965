import Coroutine
import Glibc

// A library that contains the runtime. scripts/consumer loads it into a program in C, which calls this and unloads it.

/// Makes the first use of the runtime by the name `use`; returns 7 if that does what it should.
@_cdecl("plugin_use") public func use(_ name: UnsafePointer<CChar>) -> Int32 {
  switch String(cString: name) {
  case "launch":
    let job = co_launch { () throws -> Int32 in
      try co_delay(.milliseconds(1))
      return try co_blocking { 7 }
    }
    return (try? job.blockingWait()) ?? 1
  case "generator": return co_sequence(of: Int32.self) { yield in try yield(7) }.next() ?? 1
  case "signals":
    let channel = co_signals([SIGUSR1])
    channel.close()
    return 7
  case "stalls":
    CoroutineRuntime.onStall { _ in }
    return 7
  case "deadlocks":
    CoroutineRuntime.onDeadlock { _ in }
    return 7
  default: return 2
  }
}
