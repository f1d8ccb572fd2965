internal import CLinux
import Dispatch
import Glibc

extension CoroutineRuntime {
  // Sound because it is accessed under `signalLock`.
  nonisolated(unsafe) private static var signalSource: (any DispatchSourceRead)?
  private static let signalLock = ThreadLock()

  /// Makes SIGUSR2 write ``dump()`` to standard error, even while every queue is stuck.
  ///
  /// Signals that arrive while a dump is being written cause one more dump.
  public static func dumpOnSignal() {
    signalLock.withLock {
      guard signalSource == nil else { return }
      let descriptor = clinux_notice_signal(SIGUSR2)
      if descriptor < 0 { misuse("CoroutineRuntime.dumpOnSignal: no descriptor is left (errno \(errno))") }
      // A queue of its own: the dump may be needed because one of the program's queues is stuck.
      let queue = DispatchQueue(label: "coroutine.dump", qos: .userInitiated)
      let source = DispatchSource.makeReadSource(fileDescriptor: descriptor, queue: queue)
      source.setEventHandler {
        var count: UInt64 = 0
        // Read before the dump: a signal that arrives while it is written requests another one.
        _ = read(descriptor, &count, MemoryLayout<UInt64>.size)
        writeToStandardError(dump())
      }
      source.activate()
      signalSource = source
    }
  }
}
