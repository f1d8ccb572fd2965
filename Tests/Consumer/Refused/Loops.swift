// A loop that cannot throw would end at a cancellation as at a close. scripts/consumer compiles this file and compares:
// the compiler refuses every line that ends in `// refused`, and no other.
import Coroutine

func loops(_ channel: Channel<Int>, _ mailbox: Mailbox<Int>) throws {
  for value in channel { print(value) }  // refused
  for message in mailbox { print(message) }  // refused
  try channel.forEach { print($0) }
  while let message = try mailbox.receive() { print(message) }
}
