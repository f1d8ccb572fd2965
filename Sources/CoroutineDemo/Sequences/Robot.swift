#if Demo
import Coroutine

/// A robot that says one sentence each time it is poked, and listens to what comes with the poke.
///
/// It pays attention only after "Over": told anything else there, it begins again; told nothing, it is done.
func robot(for name: String) -> Generator<String, String, String> {
  Generator { yield in
    var command: String
    repeat {
      try yield("Hello \(name), How are you?")
      try yield("Today is Friday")
      try yield("So yestday is Thursday")
      try yield("And tomorrow is Saturday")
      command = try yield("Over") ?? "Over"
    } while command != "Over"
    return "==talk done=="
  }
}
#endif
