internal import CLinux
import Dispatch

import Glibc

extension CoroutineRuntime {
  // Sound because it is read and written under `signalLock`.
  nonisolated(unsafe) private static var signalSource: (any DispatchSourceRead)?
  private static let signalLock = SpinLock()

  /// From now on SIGUSR2 writes ``dump()`` to standard error, also while every queue is stuck.
  ///
  /// Signals that come while one is being written are answered by one more dump.
  public static func dumpOnSignal() {
    signalLock.withLock {
      guard signalSource == nil else { return }
      let descriptor = clinux_notice_signal(SIGUSR2)
      if descriptor < 0 { misuse("CoroutineRuntime.dumpOnSignal: no descriptor is left (errno \(errno))") }
      // A queue of its own: one of the program's may be what the dump is wanted for.
      let queue = DispatchQueue(label: "coroutine.dump", qos: .userInitiated)
      let source = DispatchSource.makeReadSource(fileDescriptor: descriptor, queue: queue)
      source.setEventHandler {
        var count: UInt64 = 0
        // Before the dump: a signal that comes while it is written asks for another.
        _ = read(descriptor, &count, MemoryLayout<UInt64>.size)
        writeToStandardError(dump())
      }
      source.activate()
      signalSource = source
    }
  }
}
