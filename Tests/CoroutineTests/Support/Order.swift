import Coroutine

/// The messages of the actors of these tests.
enum Order: Sendable {
  case note(String)
  case fail(String)
  case finish
  case hold(Gate)
  case life(Reply<Int>)
}
