import Coroutine

/// Whether a coroutine waits for a descriptor.
func isWaitedFor(_ number: Int32) -> Bool {
  let dump = CoroutineRuntime.dump()
  return ["readable", "writable"].contains { dump.contains("for a \($0) descriptor (\(number))") }
}
