from swiftchat.chat.cli import main

main()
