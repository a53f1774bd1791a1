from swiftchat.chat.launch import main

main()
