import Glibc

// What a thread is: for the tests of the threads that the library starts.

/// The name of the calling thread.
func threadName() -> String { text(of: "/proc/thread-self/comm") }

func text(of path: String) -> String {
  guard let file = fopen(path, "r") else { return "" }
  defer { fclose(file) }
  var text: [UInt8] = []
  var block = [UInt8](repeating: 0, count: 65_536)
  while case let count = fread(&block, 1, block.count, file), count > 0 { text += block.prefix(count) }
  return String(decoding: text, as: UTF8.self)
}

/// The kernel's number of the calling thread.
func threadID() -> pid_t { pid_t(text(of: "/proc/thread-self/stat").prefix { $0 != " " }) ?? 0 }

/// Whether the thread of that number waits in the kernel.
func isAsleep(_ thread: pid_t) -> Bool {
  // "12 (name) S …": the state follows the last parenthesis.
  let line = text(of: "/proc/self/task/\(thread)/stat")
  return line.lastIndex(of: ")").map { line[$0...].dropFirst(2).first == "S" } ?? false
}

/// The signals that the calling thread blocks.
func blockedSignals() -> Set<Int32> {
  var mask = sigset_t()
  pthread_sigmask(SIG_BLOCK, nil, &mask)
  return Set((1..<32).filter { sigismember(&mask, $0) == 1 })
}
