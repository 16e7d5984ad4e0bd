"""What a registered method or plan does when it is run: who samples, what is rewarded, which rows carry credit, who learns."""
