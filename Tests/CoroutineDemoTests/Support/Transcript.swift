#if Demo
import Foundation

@testable import CoroutineDemo

/// The complete output of a file handle, read by a thread until its end.
///
/// `state` contains the bytes so far and the waiters for a text; `ended` happens after the last byte.
final class Transcript: Sendable {
  private struct State: Sendable {
    var bytes = Data()
    var isOver = false
    var waiters: [(text: String, event: Event<Bool>)] = []
  }

  private let state = Locked(State())
  private let ended = Event<Void>()

  /// Without a handle there is no output.
  init(_ handle: FileHandle?) {
    guard let handle else {
      add(nil)
      return
    }
    let descriptor = handle.fileDescriptor
    Thread.detachNewThread { [self] in
      var buffer = [UInt8](repeating: 0, count: 65_536)
      while true {
        // Not `availableData`: the end of a terminal is an error, which traps there.
        let count = read(descriptor, &buffer, buffer.count)
        if count > 0 {
          add(Data(buffer[..<count]))
        } else if count == 0 || errno != EINTR {
          break
        }
      }
      // Retained until here, because closing the handle would end the reading.
      withExtendedLifetime(handle) { add(nil) }
    }
  }

  var text: String { state.withLock { String(decoding: $0.bytes, as: UTF8.self) } }

  /// The text after the end.
  var whole: String {
    get async {
      await ended.value
      return text
    }
  }

  /// Returns true as soon as `text` has arrived, or false if the end comes without it.
  func contains(_ text: String) async -> Bool {
    let event = Event<Bool>()
    state.withLock { state in
      state.waiters.append((text, event))
    }
    add(Data())
    return await event.value
  }

  /// Adds bytes; nil means the end.
  private func add(_ bytes: Data?) {
    let (found, lost, isOver) = state.withLock { state in
      state.bytes += bytes ?? Data()
      state.isOver = state.isOver || bytes == nil
      let text = String(decoding: state.bytes, as: UTF8.self)
      let found = state.waiters.filter { text.contains($0.text) }
      let rest = state.waiters.filter { !text.contains($0.text) }
      state.waiters = state.isOver ? [] : rest
      return (found, state.isOver ? rest : [], state.isOver)
    }
    for waiter in found { waiter.event.happen(true) }
    for waiter in lost { waiter.event.happen(false) }
    if isOver { ended.happen(()) }
  }
}
#endif
